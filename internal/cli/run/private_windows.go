package run

// checkPrivate accepts every directory: on Windows it is below the user's own, whose access list others are not on.
func checkPrivate(string) error { return nil }
