//! Idle and maximum power of GPU types by product name.
//!
//! Maxima are the vendor's board powers (data sheets of the products); idle draws are what such boards take with a
//! driver loaded and no context (P8), rounded from published measurements.

use crate::Watts;

/// Part of the product name, idle W, maximum W. The first that matches counts: longer names before shorter ones.
const BOARDS: [(&str, f64, f64); 32] = [
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
    ("RTX6000", 25.0, 260.0),
    ("RTX-6000", 25.0, 260.0),
];

/// Idle and maximum draw of one GPU of a type, by the words of its product name; `None` of one that is not in the table.
pub fn board_power(gpu_type: &str) -> Option<(Watts, Watts)> {
    let name = gpu_type.to_ascii_lowercase();
    let words = |part: &str| {
        let part = part.to_ascii_lowercase();
        name.match_indices(&part).any(|(at, found)| {
            let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            !letter(name[..at].chars().next_back()) && !letter(name[at + found.len()..].chars().next())
        })
    };
    let (_, idle, max) = BOARDS.iter().find(|(part, ..)| words(part))?;
    Some((Watts(*idle), Watts(*max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_told_apart_by_whole_words() {
        assert_eq!(board_power("NVIDIA-A100-SXM4-80GB"), Some((Watts(52.0), Watts(400.0))));
        assert_eq!(board_power("Quadro-RTX6000"), Some((Watts(25.0), Watts(260.0))));
        assert_eq!(board_power("Something-A2000X"), None);
    }
}
