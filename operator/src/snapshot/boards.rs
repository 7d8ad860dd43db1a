//! Idle and maximum power of GPU types by product name, for those the administrator does not describe.
//!
//! Maxima are the vendor's board powers (data sheets of the products); idle draws are what such boards take with a
//! driver loaded and no context (P8), rounded from published measurements. `EnergyPolicy.spec.gpuTypes` goes before.

use andreas_api::EnergyPolicySpec;
use andreas_core::Watts;

/// Power of one GPU, and of its node beside the GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Board {
    /// Draw of one GPU without a job.
    pub idle: Watts,
    /// Largest draw of one GPU: its default power limit.
    pub max: Watts,
    /// Draw of a node with a running job beside its GPUs.
    pub overhead: Watts,
}

/// Part of the product name, idle W, maximum W. The first that matches counts: longer names before shorter ones.
const BOARDS: [(&str, f64, f64); 30] = [
    ("GB200", 150.0, 1200.0),
    ("B200", 140.0, 1000.0),
    ("B100", 120.0, 700.0),
    ("H200-NVL", 70.0, 600.0),
    ("H200", 75.0, 700.0),
    ("H100-PCIe", 50.0, 350.0),
    ("H100-NVL", 60.0, 400.0),
    ("H100", 70.0, 700.0),
    ("H20", 70.0, 500.0),
    ("GH200", 75.0, 700.0),
    ("A100-PCIE-40GB", 35.0, 250.0),
    ("A100-PCIE", 42.0, 300.0),
    ("A100-80GB-PCIe", 42.0, 300.0),
    ("A100", 52.0, 400.0),
    ("A800", 52.0, 400.0),
    ("L40S", 33.0, 350.0),
    ("L40", 33.0, 300.0),
    ("L4", 14.0, 72.0),
    ("A40", 30.0, 300.0),
    ("A30", 27.0, 165.0),
    ("A16", 15.0, 62.0),
    ("A10G", 18.0, 300.0),
    ("A10", 18.0, 150.0),
    ("A2", 8.0, 60.0),
    ("V100-PCIE", 26.0, 250.0),
    ("V100", 38.0, 300.0),
    ("P100", 28.0, 250.0),
    ("M60", 25.0, 300.0),
    ("K80", 26.0, 150.0),
    ("T4", 10.0, 70.0),
];

/// Of a type that nobody described: one in the middle of the field.
const UNKNOWN: (f64, f64) = (30.0, 300.0);

/// Power of a GPU type: the policy's word, else the table's by product name, else a middling board.
pub fn board(gpu_type: &str, policy: &EnergyPolicySpec) -> Board {
    if let Some(row) = policy.gpu_types.iter().find(|row| row.name == gpu_type) {
        let idle = f64::from(row.idle_watts.max(0));
        return Board {
            idle: Watts(idle),
            max: Watts(f64::from(row.max_watts).max(idle).max(1.0)),
            overhead: Watts(f64::from(row.node_overhead_watts.max(0))),
        };
    }
    let name = gpu_type.to_ascii_lowercase();
    let words = |part: &str| {
        let part = part.to_ascii_lowercase();
        name.match_indices(&part).any(|(at, found)| {
            let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            !letter(name[..at].chars().next_back()) && !letter(name[at + found.len()..].chars().next())
        })
    };
    let (idle, max) =
        BOARDS.iter().find(|(part, ..)| words(part)).map_or(UNKNOWN, |(_, idle, max)| (*idle, *max));
    Board { idle: Watts(idle), max: Watts(max), overhead: Watts::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::energy_policy::GpuTypePower;

    #[test]
    fn products_are_told_apart_by_whole_words() {
        let policy = EnergyPolicySpec::default();
        let max = |name: &str| board(name, &policy).max.0;
        assert_eq!(max("NVIDIA-A100-SXM4-80GB"), 400.0);
        assert_eq!(max("NVIDIA-A100-PCIE-40GB"), 250.0);
        assert_eq!(max("Tesla-V100-SXM2-16GB"), 300.0);
        assert_eq!(max("Tesla-T4"), 70.0);
        assert_eq!(max("NVIDIA-L4"), 72.0);
        assert_eq!(max("NVIDIA-L40S"), 350.0);
        assert_eq!(max("NVIDIA-GH200-480GB"), 700.0);
        assert_eq!(max("Something-A2000X"), 300.0, "A2 is not part of A2000X");
    }

    #[test]
    fn the_administrator_goes_first_and_nonsense_is_put_right() {
        let row = |idle, max| GpuTypePower {
            name: "X".into(),
            idle_watts: idle,
            max_watts: max,
            node_overhead_watts: 90,
        };
        let policy = EnergyPolicySpec { gpu_types: vec![row(80, 20)], ..EnergyPolicySpec::default() };
        assert_eq!(board("X", &policy), Board { idle: Watts(80.0), max: Watts(80.0), overhead: Watts(90.0) });
    }
}
