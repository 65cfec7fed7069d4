"""Published experiments, one file each: `posterity reproduce NAME`."""
