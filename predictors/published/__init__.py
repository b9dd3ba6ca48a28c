"""Published methods as predictors, each faithful to its paper: to stand beside ours."""
