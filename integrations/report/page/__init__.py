"""What a report's page is made of: each part says one thing of a forecast in HTML."""
