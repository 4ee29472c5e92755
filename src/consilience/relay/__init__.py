"""The relay: channels behind HTTP, kept in a store on disk. It knows nothing of learning and never imports torch."""
