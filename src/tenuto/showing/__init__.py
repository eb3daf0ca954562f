"""What people look at: pictures, maps of schedules, pages."""
