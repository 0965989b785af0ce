"""Why a request went where it went, or nowhere, and when it may come again."""
