"""Tenuto's nodes for ComfyUI: copy this folder into ComfyUI/custom_nodes, and install Tenuto."""

from .node import Tenuto

NODE_CLASS_MAPPINGS = {"Tenuto": Tenuto}
NODE_DISPLAY_NAME_MAPPINGS = {"Tenuto": "Tenuto"}

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
