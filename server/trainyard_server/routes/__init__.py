"""HTTP. A route parses, calls one use case and returns; `routes.common` has what they share."""
