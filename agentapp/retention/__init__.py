"""What goes by age, and how everything of a user goes. It decides and conducts; storage has the rows."""
