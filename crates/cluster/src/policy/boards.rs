//! Idle and maximum power of GPU types that the administrator does not describe.
//!
//! `EnergyPolicy.spec.gpuTypes` overrides the table `andreas_model::board_power`. Types in neither take the
//! agents' readings, which the caller adds to the policy.

use andreas_api::EnergyPolicySpec;
use andreas_model::{HostPower, Watts};

/// Power of one GPU and of its node besides the GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Board {
    /// Draw of one GPU without a job.
    pub idle: Watts,
    /// Maximum draw of one GPU: its default power limit, or its owner's that is lower.
    pub max: Watts,
    /// Its default power limit, which stands for its generation.
    full: Watts,
    /// Draw of a node besides its GPUs, without and with a job, where the administrator says so.
    host: [Option<Watts>; 2],
    /// Draw of a node that is switched off.
    pub off: Watts,
}

/// Draw of a machine that is off: its BMC and its power supplies.
const OFF: i32 = 15;

impl Board {
    /// The board where no GPU of the type draws more than its ceiling, W. Its host is the same.
    #[must_use]
    pub fn with_ceiling(self, ceiling: Option<Watts>) -> Self {
        let ceiling = ceiling.map_or(self.max.0, |ceiling| ceiling.0.max(self.idle.0));
        Self { max: Watts(self.max.0.min(ceiling)), ..self }
    }

    /// Draw of a host with this many GPUs of the type, without the GPUs: from the policy, else from the table.
    pub fn host(&self, gpus: u64) -> HostPower {
        let [idle, busy] = self.host;
        HostPower::default_for(self.full, u32::try_from(gpus).unwrap_or(u32::MAX)).known(idle, busy)
    }
}

/// Idle and maximum power assumed for the energy cost of an undescribed type. Never used with a power budget:
/// such nodes are then excluded.
const ASSUMED: (Watts, Watts) = (Watts(30.0), Watts(300.0));
/// Maximum draw of one GPU accepted from an agent, W: above every board sold or announced.
pub const HIGHEST: i32 = 3_000;
/// Divisor of the maximum that gives the idle draw if only the maximum is known. Few boards draw more.
pub const IDLE_PART: i32 = 5;

/// Whether the policy or the table of boards describes the power of a GPU type.
pub fn is_described(gpu_type: &str, policy: &EnergyPolicySpec) -> bool {
    policy.gpu_types.iter().any(|row| row.name == gpu_type) || andreas_model::board_power(gpu_type).is_some()
}

/// Power of a GPU type: from the policy, else the table by the type's name, else the assumption for costs.
pub fn board(gpu_type: &str, policy: &EnergyPolicySpec) -> Board {
    if let Some(row) = policy.gpu_types.iter().find(|row| row.name == gpu_type) {
        let idle = f64::from(row.idle_watts.max(0));
        let max = Watts(f64::from(row.max_watts).max(idle).max(1.0));
        return Board {
            idle: Watts(idle),
            max,
            full: max,
            host: [row.host_idle_watts, row.host_busy_watts]
                .map(|watts| watts.map(|watts| Watts(f64::from(watts.max(0))))),
            off: Watts(f64::from(row.host_off_watts.unwrap_or(OFF).max(0))),
        };
    }
    let (idle, max) = andreas_model::board_power(gpu_type).unwrap_or(ASSUMED);
    Board { idle, max, full: max, host: [None; 2], off: Watts(OFF.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::energy_policy::GpuTypePower;

    #[test]
    fn products_are_matched_by_whole_words() {
        let policy = EnergyPolicySpec::default();
        let max = |name: &str| board(name, &policy).max.0;
        assert_eq!(max("NVIDIA-A100-SXM4-80GB"), 400.0);
        assert_eq!(max("NVIDIA-A100-PCIE-40GB"), 250.0);
        assert_eq!(max("Tesla-V100-SXM2-16GB"), 300.0);
        assert_eq!(max("Tesla-T4"), 70.0);
        assert_eq!(max("NVIDIA-L4"), 72.0);
        assert_eq!(max("NVIDIA-L40S"), 350.0);
        assert_eq!(max("NVIDIA-GH200-480GB"), 900.0, "the default limit of some machines");
        assert_eq!(max("Something-A2000X"), 300.0, "A2 is not part of A2000X");
    }

    #[test]
    fn the_administrator_goes_first_and_nonsense_is_put_right() {
        let row = |idle, max| GpuTypePower {
            name: "X".into(),
            idle_watts: idle,
            max_watts: max,
            host_idle_watts: None,
            host_busy_watts: Some(80),
            host_off_watts: None,
            min_limit_watts: None,
        };
        let policy = EnergyPolicySpec { gpu_types: vec![row(80, 20)], ..EnergyPolicySpec::default() };
        let found = board("X", &policy);
        assert_eq!((found.idle, found.max), (Watts(80.0), Watts(80.0)));
        assert_eq!(found.host(4), HostPower { idle: Watts(50.0), busy: Watts(80.0) });
        // The policy does not describe the host: the table does, never with 0.
        let default = board("Tesla-T4", &EnergyPolicySpec::default());
        assert_eq!(default.host(4).idle, Watts(150.0));
    }
}
