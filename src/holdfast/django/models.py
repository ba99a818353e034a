"""No models: `manage.py migrate` creates the tables of Holdfast by its own migrations."""
