"""What gunicorn and the wheel need: options, the worker class, files that travel with the package."""
