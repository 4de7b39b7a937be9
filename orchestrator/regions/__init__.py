"""What regions meet in: a door to objects in a folder, for whom an object store would be one service more."""
