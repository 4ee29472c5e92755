"""The server: nothing of one's own."""

from consilience_flower import server_app

app = server_app()
