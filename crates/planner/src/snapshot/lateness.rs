//! The price of lateness.

use andreas_model::Seconds;
use serde::{Deserialize, Serialize};

/// Cost of lateness, beside the jobs' weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Cost of a second in the system, as a share of a second late, >= 0. Jobs without deadline use at least
    /// 0.1.
    #[serde(default)]
    pub turnaround_share: f64,
    /// Cost of a missed deadline, as additional seconds of lateness, >= 0.
    #[serde(default)]
    pub late_fixed: Seconds,
    /// Waiting time that doubles a job's planning weight (maximum: ten times the weight), > 0; `None`: no
    /// ageing.
    #[serde(default)]
    pub aging: Option<Seconds>,
}

impl Lateness {
    /// Cost of a second in the system of a job with or without deadline, as a share of a second late.
    pub fn share(&self, has_deadline: bool) -> f64 {
        if has_deadline { self.turnaround_share } else { self.turnaround_share.max(0.1) }
    }

    /// What an end costs, in seconds at the job's weight. `late`: from the deadline to the end, negative where it is in time; `None`
    /// without a deadline. `turnaround`: from the submission to the end.
    pub fn charges(&self, late: Option<Seconds>, turnaround: Seconds) -> Charges {
        let tardiness = late.unwrap_or(Seconds::ZERO).max(Seconds::ZERO);
        let missed = tardiness > Seconds::ZERO;
        Charges {
            tardiness,
            miss: if missed { self.late_fixed } else { Seconds::ZERO },
            turnaround: turnaround * self.share(late.is_some()),
        }
    }
}

/// The parts of what an end costs beside energy, in seconds at the job's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Charges {
    /// Time after the deadline.
    pub tardiness: Seconds,
    /// The fixed price of a missed deadline.
    pub miss: Seconds,
    /// Time in the system.
    pub turnaround: Seconds,
}

impl Charges {
    /// Sum of the charges, in seconds at the job's weight.
    pub fn sum(&self) -> Seconds {
        self.tardiness + self.miss + self.turnaround
    }
}
