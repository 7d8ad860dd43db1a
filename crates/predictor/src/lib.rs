//! Observations to predicted times and power, pure.
