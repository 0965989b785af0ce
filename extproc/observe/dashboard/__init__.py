"""The dashboard: its page, and what it shows beside the pages that there are anyway."""
