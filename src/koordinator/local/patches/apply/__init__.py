"""Server-side apply: field sets and owners (`managed`), typed values (`typed`), the rules (`server_side`)."""
