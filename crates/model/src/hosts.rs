//! Power of a node besides its GPUs: processors, memory, fans, network, power supplies.
//!
//! **Measured**: servers with eight A100 (Acme's cluster Seren, NSDI 2024, AcmeTrace commit 6d6ac9cd15f3). The 10th
//! percentile of a server is 1,512 W with GPUs at 63 W, so an empty host draws 1.0 kW. The mean is 2,930 W with GPUs at
//! 168 W, and the 90th percentile 4,851 W with GPUs at 395 W: a busy host draws 1.6 to 1.7 kW.
//!
//! **Scaled**: other hosts by what their maker allows besides the GPUs (data sheets: DGX A100 3.3 kW, DGX H100 4.6 kW,
//! DGX B200 6.3 kW, DGX-1 V100 1.1 kW); servers with inference cards by two processors and fans. The busy part is that
//! of the measured servers.

use crate::Watts;

/// Draw of a node besides its GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostPower {
    /// Powered on without any job, > 0.
    pub idle: Watts,
    /// With at least one job, >= `idle`.
    pub busy: Watts,
}

/// Draw of a host without its GPU boards, W.
const BASE: f64 = 100.0;
/// Highest maximum power of a board, and watts of an empty host for each such board; the first match counts.
const PER_BOARD: [(f64, f64); 5] = [
    // T4, L4, A10, A2: 150 W for four.
    (150.0, 12.5),
    // V100, P100, and PCIe boards: 300 W for four.
    (350.0, 50.0),
    // A100 and H20 on an NVSwitch board: 1.0 kW for eight.
    (500.0, 112.5),
    // H100, H200, GH200: 1.4 kW for eight.
    (900.0, 162.5),
    // B200 and later: 1.9 kW for eight.
    (f64::INFINITY, 225.0),
];
/// Busy over empty, of the measured servers.
const BUSY_FACTOR: f64 = 1.6;

impl HostPower {
    /// The default for a node with this many GPUs of a type with this maximum power (W, of one GPU).
    ///
    /// ```
    /// use andreas_model::{HostPower, Watts};
    /// assert_eq!(HostPower::default_for(Watts(400.0), 8), HostPower { idle: Watts(1000.0), busy: Watts(1600.0) });
    /// assert_eq!(HostPower::default_for(Watts(70.0), 4).idle, Watts(150.0));
    /// ```
    pub fn default_for(board_max: Watts, gpus: u32) -> Self {
        let per_board =
            PER_BOARD.iter().find(|(most, _)| board_max.0 <= *most).map_or(0.0, |(_, watts)| *watts);
        let idle = BASE + per_board * f64::from(gpus);
        Self { idle: Watts(idle), busy: Watts(idle * BUSY_FACTOR) }
    }

    /// These watts where they are known, else the default's. One known value scales the other; a busy host draws at
    /// least as much as an empty one.
    pub fn known(self, idle: Option<Watts>, busy: Option<Watts>) -> Self {
        let (idle, busy) = match (idle, busy) {
            (None, None) => return self,
            (Some(idle), None) => (idle, Watts(idle.0 * BUSY_FACTOR)),
            (None, Some(busy)) => (Watts(busy.0 / BUSY_FACTOR), busy),
            (Some(idle), Some(busy)) => (idle, busy),
        };
        Self { idle, busy: Watts(busy.0.max(idle.0)) }
    }

    /// What a run that holds `held` of the host's `gpus` is billed for: that part of the busy host's draw. Runs that hold all of
    /// them together pay for the whole host. GPUs that nobody holds, and a host without a job, are nobody's. What a run
    /// pays does not depend on who else is there.
    ///
    /// ```
    /// use andreas_model::{HostPower, Watts};
    /// let host = HostPower::default_for(Watts(400.0), 8);
    /// assert_eq!((host.share(8, 8), host.share(4, 8)), (Watts(1600.0), Watts(800.0)));
    /// ```
    pub fn share(self, held: u32, gpus: u32) -> Watts {
        let part = f64::from(held) / f64::from(gpus.max(held).max(1));
        Watts(self.busy.0.max(self.idle.0) * part)
    }

    /// What a first job adds to the draw of a node that is on anyway.
    pub fn overhead(self) -> Watts {
        Watts((self.busy.0 - self.idle.0).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_host_draws_nothing_and_larger_ones_draw_more() {
        for max in [50.0, 70.0, 300.0, 400.0, 700.0, 1000.0] {
            let of = |gpus| HostPower::default_for(Watts(max), gpus);
            assert!(of(0).idle.0 > 0.0 && of(4).idle.0 < of(8).idle.0, "{max}");
            assert!(of(8).busy.0 > of(8).idle.0, "{max}");
        }
        assert!(
            HostPower::default_for(Watts(300.0), 4).idle.0 < HostPower::default_for(Watts(400.0), 4).idle.0
        );
    }

    #[test]
    fn runs_that_hold_all_gpus_of_a_host_pay_for_all_of_it() {
        let host = HostPower::default_for(Watts(700.0), 8);
        let all: Watts = [1, 2, 5].into_iter().map(|held| host.share(held, 8)).sum();
        assert!((all.0 - host.busy.0).abs() < 1e-9, "{all}");
        assert_eq!(host.share(4, 8), Watts(host.busy.0 / 2.0), "the other half is nobody's");
        assert_eq!(host.share(0, 8), Watts::ZERO);
        // While its device plug-in starts again, a node offers no GPUs.
        assert_eq!(host.share(2, 0), host.busy);
    }

    #[test]
    fn known_watts_go_first() {
        let default = HostPower::default_for(Watts(400.0), 8);
        assert_eq!(default.known(None, None), default);
        assert_eq!(default.known(Some(Watts(500.0)), None).busy, Watts(800.0));
        assert_eq!(default.known(None, Some(Watts(800.0))).idle, Watts(500.0));
        let odd = default.known(Some(Watts(90.0)), Some(Watts(20.0)));
        assert_eq!((odd.busy, odd.overhead()), (Watts(90.0), Watts::ZERO));
    }
}
