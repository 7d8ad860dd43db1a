//! The vocabulary: units, GPU types, configurations, tariffs, power.
