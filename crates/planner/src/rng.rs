//! Random numbers that are the same on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A source of random numbers: ChaCha with 8 rounds, whose output is specified.
pub struct Random(ChaCha8Rng);

impl Random {
    /// Numbers from a seed.
    pub fn new(seed: u64) -> Self {
        let mut whole = [0; 32];
        whole[..8].copy_from_slice(&seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(whole))
    }

    /// A uniform integer in [0, end); `end` must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((self.unit_interval() * end as f64) as usize).min(end - 1)
    }

    /// A uniform number in [0, 1).
    pub fn unit_interval(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / 4_294_967_296.0
    }
}
