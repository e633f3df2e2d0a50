"""Documents of results: functions of the JSON object of each result, for text and reports."""
