//! How far runs of one profile differ from each other in the times of their epochs: data, seeds, storage, other jobs.
//!
//! **In**: rows of several runs on one configuration. **Out**: the variance of the log between runs. It is estimated by
//! moments for a profile, with what its tenant's profiles show as prior; runs of these are equal until they differ. It widens
//! the prediction of a further run, and lets one run count as one run, however many epochs it had.

/// Standard deviation of the log of one epoch around its run's mean: warm-up, shared storage, other
/// jobs.
pub(crate) const EPOCH_SPREAD: f64 = 0.15;
/// Differences between runs that a prior counts as.
const PRIOR_WEIGHT: f64 = 2.0;
/// Largest standard deviation of the log: a factor of two.
const LARGEST: f64 = std::f64::consts::LN_2;

/// Squared differences between runs beyond those of their epochs, and how many there are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunSpread {
    squares: f64,
    count: f64,
}

impl RunSpread {
    /// From the rows of one configuration: the log of each time, and its epochs.
    pub fn from_rows(rows: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let n = rows.clone().count() as f64;
        let mean = rows.clone().map(|(log, _)| log).sum::<f64>() / n.max(1.0);
        let own = |epochs: f64| EPOCH_SPREAD * EPOCH_SPREAD / epochs.max(0.05);
        let squares = rows
            .map(|(log, epochs)| {
                let off = (log - mean).clamp(-LARGEST, LARGEST);
                off * off - own(epochs) * (1.0 - 1.0 / n)
            })
            .sum();
        if n < 2.0 { Self::default() } else { Self { squares, count: n - 1.0 } }
    }

    /// Of several configurations or profiles.
    pub fn and(self, other: Self) -> Self {
        Self { squares: self.squares + other.squares, count: self.count + other.count }
    }

    /// Variance of the log between runs, with the tenant's as prior.
    pub fn variance(self, prior: f64) -> f64 {
        let mean = (self.squares + PRIOR_WEIGHT * prior) / (self.count + PRIOR_WEIGHT);
        mean.clamp(0.0, LARGEST * LARGEST)
    }

    /// The same for a tenant.
    pub fn usual(self) -> f64 {
        self.variance(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_differ_are_not_taken_for_epochs_that_do() {
        let of = |logs: &[f64], epochs: f64| RunSpread::from_rows(logs.iter().map(|log| (*log, epochs)));
        let sigma = |spread: RunSpread| libm::sqrt(spread.variance(spread.usual()));
        let apart = [-0.2, 0.2, -0.2, 0.2, -0.2, 0.2];
        assert!((0.17..0.23).contains(&sigma(of(&apart, 1e6))), "{}", sigma(of(&apart, 1e6)));
        // Single epochs differ so much by themselves.
        assert!(sigma(of(&apart, 1.0)) < 0.17, "{}", sigma(of(&apart, 1.0)));
        assert!(sigma(of(&[0.0; 20], 1e6)) < 0.001);
        // One run says nothing; a tenant's other profiles do.
        assert_eq!(of(&[3.0], 1e6).variance(0.04), 0.04);
        let tenant = (0..20).map(|_| of(&apart, 1e6)).fold(RunSpread::default(), RunSpread::and);
        assert!((0.19..0.23).contains(&libm::sqrt(RunSpread::default().variance(tenant.usual()))));
        assert!(sigma(of(&[0.0, 1e3], 1e6)) <= LARGEST, "bounded");
    }
}
