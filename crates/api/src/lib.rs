//! Custom resources, names of labels, annotations and environment; slim watch types.
