//! Random numbers that are the same on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// The generator of a randomized method's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Generator {
    /// ChaCha with 8 rounds, whose output is specified.
    #[default]
    ChaCha8,
    /// The default engine of the GNU C++ library (`minstd_rand0`, Park and Miller 1988). The published
    /// ANDREAS optimizer uses it, so comparisons in its accounting do as well.
    MinStd,
}

/// A source of random numbers.
pub struct Random(Engine);

enum Engine {
    ChaCha8(Box<ChaCha8Rng>),
    MinStd(u64),
}

/// Modulus and multiplier of Park and Miller's minimal standard generator.
const MODULUS: u64 = 2_147_483_647;
const MULTIPLIER: u64 = 16_807;

impl Random {
    /// Numbers from a seed.
    pub fn new(generator: Generator, seed: u64) -> Self {
        Self(match generator {
            Generator::ChaCha8 => {
                let mut whole = [0; 32];
                whole[..8].copy_from_slice(&seed.to_le_bytes());
                Engine::ChaCha8(Box::new(ChaCha8Rng::from_seed(whole)))
            }
            Generator::MinStd => Engine::MinStd((seed % MODULUS).max(1)),
        })
    }

    /// A uniform integer in [0, end); `end` must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((self.unit_interval() * end as f64) as usize).min(end - 1)
    }

    /// A uniform number in [0, 1).
    pub fn unit_interval(&mut self) -> f64 {
        match &mut self.0 {
            Engine::ChaCha8(rng) => f64::from(rng.next_u32()) / 4_294_967_296.0,
            Engine::MinStd(state) => {
                // Two draws fill the 53 bits of a double, the lower part first.
                let mut next = || {
                    *state = *state * MULTIPLIER % MODULUS;
                    (*state - 1) as f64
                };
                let range = (MODULUS - 1) as f64;
                let (low, high) = (next(), next());
                (low + high * range) / (range * range)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_engine_is_the_minimal_standard_generator() {
        // The 10,000th number after seed 1 is part of the C++ standard ([rand.predef]).
        let mut state = 1;
        for _ in 0..10_000 {
            state = state * MULTIPLIER % MODULUS;
        }
        assert_eq!(state, 1_043_618_065);
    }
}
