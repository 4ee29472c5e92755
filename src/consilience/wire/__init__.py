"""What may travel and how it becomes bytes: schema, encodings, codec, headers, byte counts, charter."""
