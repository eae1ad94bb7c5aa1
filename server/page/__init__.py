"""What people see of a server: views of its state, as HTML with pictures, as CSV and as JSON."""
