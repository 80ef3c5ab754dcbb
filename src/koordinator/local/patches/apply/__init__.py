"""Server-side apply: field sets (`fieldset`), typed values (`typed`), owners (`managed`), the rules (`server_side`)."""
