"""The processes that train one run together: how they meet, and what each of them holds."""
