"""What the practice pages and their API share: statements as HTML, judging, and records to show."""
