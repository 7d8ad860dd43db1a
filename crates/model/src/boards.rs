//! Idle and maximum power of GPU types by name: the product label of GPU feature discovery, GKE's accelerator
//! label, or a cloud's instance type.
//!
//! **Maximum**: the driver's default power limit, as `nvidia-smi` shows it in published logs, or the board
//! power of the product's data sheet. Where the values or machines differ, the larger one, because power
//! budgets rely on it. **Idle**: published logs with a loaded driver and no context, rounded.

use crate::Watts;

/// Source of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Maximum from the data sheet, idle from published measurements.
    Sheet,
    /// Both from logs of `nvidia-smi`.
    Logs,
    /// Maximum from the data sheet, idle from the nearest board with logs.
    Near,
}
use Source::{Logs, Near, Sheet};

/// Part of the name, idle W, maximum W, source. The first match counts, so longer names come first.
const BOARDS: [(&str, f64, f64, Source); 72] = [
    // Blackwell. GB300: 172-237 W of 1,400; B300 SXM6: 135-181 of 1,100; GB200: 156-181 of 1,200;
    // B200: 136-195 of 1,000.
    ("GB300", 200.0, 1400.0, Logs),
    ("B300", 140.0, 1100.0, Logs),
    ("GB200", 165.0, 1200.0, Logs),
    ("B200", 140.0, 1000.0, Logs),
    ("B100", 120.0, 700.0, Near),
    ("RTX-PRO-6000-Blackwell-Max-Q", 16.0, 300.0, Logs),
    // 30-106 W of 600, Server and Workstation Edition.
    ("RTX-PRO-6000", 45.0, 600.0, Logs),
    ("RTX-PRO-5000", 30.0, 300.0, Near),
    ("RTX-PRO-4500", 20.0, 200.0, Near),
    ("RTX-5090", 25.0, 575.0, Sheet),
    ("RTX-5080", 20.0, 360.0, Near),
    // Hopper. GH200: 73-87 W, of 700 on most machines and 900 on others.
    ("GH200", 80.0, 900.0, Logs),
    ("H200-NVL", 70.0, 600.0, Sheet),
    ("H200", 75.0, 700.0, Logs),
    ("H100-PCIe", 50.0, 350.0, Sheet),
    ("H100-NVL", 60.0, 400.0, Sheet),
    ("H100", 70.0, 700.0, Logs),
    ("H800-PCIe", 50.0, 350.0, Near),
    ("H800", 70.0, 700.0, Near),
    // Sold as 400 W; the driver's default limit is 500 W, idle 72 W.
    ("H20", 72.0, 500.0, Logs),
    // Ada Lovelace.
    ("L40S", 33.0, 350.0, Sheet),
    ("L40G", 33.0, 300.0, Near),
    ("L40", 33.0, 300.0, Sheet),
    ("L20", 30.0, 275.0, Near),
    ("L4", 14.0, 72.0, Sheet),
    // 23-34 W of 300.
    ("RTX-6000-Ada", 23.0, 300.0, Logs),
    ("RTX-5000-Ada", 20.0, 250.0, Near),
    ("RTX-4500-Ada", 18.0, 210.0, Near),
    ("RTX-4000-SFF-Ada", 8.0, 70.0, Near),
    ("RTX-4000-Ada", 14.0, 130.0, Near),
    // 5-34 W of 450; 480 and 500 on some vendors' cards.
    ("RTX-4090", 22.0, 500.0, Logs),
    ("RTX-4080", 15.0, 320.0, Near),
    // Ampere.
    ("A100-PCIE-40GB", 35.0, 250.0, Sheet),
    ("A100-PCIE", 42.0, 300.0, Sheet),
    ("A100-80GB-PCIe", 42.0, 300.0, Sheet),
    ("A100X", 42.0, 300.0, Near),
    ("A100", 52.0, 400.0, Sheet),
    ("A800-80GB-PCIe", 42.0, 300.0, Near),
    ("A800", 52.0, 400.0, Near),
    ("A40", 30.0, 300.0, Sheet),
    ("A30", 27.0, 165.0, Sheet),
    // Per GPU; the board has four.
    ("A16", 15.0, 62.0, Sheet),
    ("A10G", 18.0, 300.0, Logs),
    ("A10", 18.0, 150.0, Sheet),
    ("A2", 8.0, 60.0, Sheet),
    ("RTX-A6000", 22.0, 300.0, Sheet),
    ("RTX-A5000", 18.0, 230.0, Near),
    ("RTX-A4000", 12.0, 140.0, Near),
    ("RTX-3090-Ti", 22.0, 450.0, Near),
    ("RTX-3090", 22.0, 350.0, Sheet),
    ("RTX-3080", 18.0, 350.0, Near),
    // Volta and Turing.
    ("V100-PCIE", 26.0, 250.0, Sheet),
    ("V100S-PCIE", 26.0, 250.0, Near),
    ("V100-SXM3", 48.0, 350.0, Sheet),
    ("V100", 38.0, 300.0, Sheet),
    ("TITAN-V", 25.0, 250.0, Near),
    ("TITAN-RTX", 20.0, 280.0, Near),
    ("T4G", 10.0, 70.0, Near),
    ("T4", 10.0, 70.0, Sheet),
    ("RTX6000", 25.0, 260.0, Sheet),
    ("RTX-6000", 25.0, 260.0, Sheet),
    ("RTX-8000", 25.0, 260.0, Near),
    ("RTX-2080-Ti", 20.0, 260.0, Near),
    ("RTX-2080", 18.0, 225.0, Near),
    // Pascal, Maxwell, Kepler.
    ("P100-SXM2", 30.0, 300.0, Sheet),
    ("P100", 28.0, 250.0, Sheet),
    ("P40", 25.0, 250.0, Near),
    ("P4", 8.0, 75.0, Near),
    ("GTX-1080-Ti", 15.0, 250.0, Near),
    ("GTX-1080", 12.0, 180.0, Near),
    ("M60", 25.0, 300.0, Sheet),
    // Per GPU; the board has two.
    ("K80", 26.0, 150.0, Sheet),
];

/// Prefixes of instance types and the board in them: Amazon's families (EC2 user guide, accelerated
/// computing), and those of Azure whose names do not contain the board.
const INSTANCES: [(&str, &str); 24] = [
    ("p6e-gb300.", "GB300"),
    ("p6e-gb200.", "GB200"),
    ("p6-b300.", "B300"),
    ("p6-b200.", "B200"),
    ("p5en.", "H200"),
    ("p5e.", "H200"),
    ("p5.", "H100"),
    ("p4de.", "A100"),
    ("p4d.", "A100"),
    ("p3dn.", "V100"),
    ("p3.", "V100"),
    ("p2.", "K80"),
    ("g7e.", "RTX-PRO-6000"),
    ("g6e.", "L40S"),
    ("gr6.", "L4"),
    ("g6.", "L4"),
    ("g5g.", "T4G"),
    ("g5.", "A10G"),
    ("g4dn.", "T4"),
    ("g3.", "M60"),
    ("standard_nc6s_v3", "V100"),
    ("standard_nc12s_v3", "V100"),
    ("standard_nc24", "V100"),
    ("standard_nd40rs_v2", "V100"),
];

/// Idle and maximum power of one GPU of a type, looked up by its name; `None` if unknown.
pub fn board_power(gpu_type: &str) -> Option<(Watts, Watts)> {
    let name = gpu_type.to_ascii_lowercase();
    by_words(&name).or_else(|| {
        let (_, board) = INSTANCES.iter().find(|(begin, _)| name.starts_with(begin))?;
        by_words(&board.to_ascii_lowercase())
    })
}

/// Looks up a lower-case name.
fn by_words(name: &str) -> Option<(Watts, Watts)> {
    let words = |part: &str| {
        let part = part.to_ascii_lowercase();
        name.match_indices(&part).any(|(at, found)| {
            let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            !letter(name[..at].chars().next_back()) && !letter(name[at + found.len()..].chars().next())
        })
    };
    let (_, idle, max, _) = BOARDS.iter().find(|(part, ..)| words(part))?;
    Some((Watts(*idle), Watts(*max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_matched_by_whole_words() {
        assert_eq!(board_power("NVIDIA-A100-SXM4-80GB"), Some((Watts(52.0), Watts(400.0))));
        assert_eq!(board_power("Quadro-RTX6000"), Some((Watts(25.0), Watts(260.0))));
        assert_eq!(board_power("Something-A2000X"), None);
        let max = |name: &str| board_power(name).map(|(_, max)| max.0);
        for (name, watts) in [
            ("NVIDIA-B300-SXM6-AC", 1100.0),
            ("NVIDIA-GB300", 1400.0),
            ("NVIDIA-GH200-144G-HBM3e", 900.0),
            ("NVIDIA-H20-3e", 500.0),
            ("NVIDIA-H200", 700.0),
            ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 600.0),
            ("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", 300.0),
            ("NVIDIA-RTX-6000-Ada-Generation", 300.0),
            ("NVIDIA-GeForce-RTX-4090", 500.0),
            ("Tesla-P100-SXM2-16GB", 300.0),
            ("Tesla-V100-SXM3-32GB", 350.0),
        ] {
            assert_eq!(max(name), Some(watts), "{name}");
        }
    }

    #[test]
    fn names_of_clouds_are_known_by_the_board_in_them() {
        let max = |name: &str| board_power(name).map(|(_, max)| max.0);
        for (name, watts) in [
            ("nvidia-tesla-a100", 400.0),
            ("nvidia-h100-mega-80gb", 700.0),
            ("p4d.24xlarge", 400.0),
            ("p5en.48xlarge", 700.0),
            ("p6-b200.48xlarge", 1000.0),
            ("g6e.12xlarge", 350.0),
            ("Standard_NC4as_T4_v3", 70.0),
            ("Standard_ND96isr_H100_v5", 700.0),
            ("Standard_NC6s_v3", 300.0),
        ] {
            assert_eq!(max(name), Some(watts), "{name}");
        }
        assert_eq!(max("m5.large"), None);
    }

    #[test]
    fn every_row_can_be_reached_and_makes_sense() {
        for (name, idle, max, _) in BOARDS {
            assert_eq!(
                board_power(name),
                Some((Watts(idle), Watts(max))),
                "{name} is hidden by a row before it"
            );
            assert!(idle > 0.0 && idle < max / 2.0, "{name}");
        }
        for (name, _) in INSTANCES {
            assert!(board_power(&format!("{name}xlarge")).is_some(), "{name}");
        }
    }
}
