"""The trial behind `advise`: samples that learners hold out, the methods that are tried, and their answers."""
