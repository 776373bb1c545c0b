"""Migrations of the service's database, by Alembic."""
