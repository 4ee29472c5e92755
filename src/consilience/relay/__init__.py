"""The relay: channels over HTTP, with a store on disk. It knows nothing of learning and never imports torch."""
