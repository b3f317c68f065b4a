"""What of the documentation is made out of the code: reference pages, blocks of the method pages, pictures."""
