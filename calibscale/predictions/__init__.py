"""What a row claims: kinds of predictions, their validity, residuals and draws."""
