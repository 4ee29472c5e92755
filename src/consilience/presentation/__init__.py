"""How results look wherever they are shown: tables, charts, images, colors."""
