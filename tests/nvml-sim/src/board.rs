//! NVIDIA's boards: what a product is, whichever node it is in.

/// A board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    /// The word of a product's name that tells it.
    pub word: &'static str,
    /// CUDA compute capability, major and minor.
    pub capability: (u32, u32),
    /// PCI device ID; the vendor is NVIDIA.
    pub pci_device: u16,
    /// Whether it can be partitioned (MIG).
    pub mig: bool,
}

/// Compute capabilities are those of NVIDIA's page "CUDA GPU Compute Capability", PCI device IDs those of pci.ids
/// (where a word stands for several boards, that of one of them), and the boards with MIG those of NVIDIA's "MIG User
/// Guide".
const BOARDS: [Board; 17] = [
    board("B200", (10, 0), 0x2901, true),
    board("GH200", (9, 0), 0x2342, true),
    board("H200", (9, 0), 0x2335, true),
    board("H100", (9, 0), 0x2330, true),
    board("H800", (9, 0), 0x2324, true),
    board("H20", (9, 0), 0x2329, true),
    board("L40S", (8, 9), 0x26b9, false),
    board("L40", (8, 9), 0x26b5, false),
    board("L4", (8, 9), 0x27b8, false),
    board("A100", (8, 0), 0x20b2, true),
    board("A800", (8, 0), 0x20f3, true),
    board("A30", (8, 0), 0x20b7, true),
    board("A40", (8, 6), 0x2235, false),
    board("A10", (8, 6), 0x2236, false),
    board("A10G", (8, 6), 0x2237, false),
    board("V100", (7, 0), 0x1db1, false),
    board("T4", (7, 5), 0x1eb8, false),
];

const fn board(word: &'static str, capability: (u32, u32), pci_device: u16, mig: bool) -> Board {
    Board { word, capability, pci_device, mig }
}

impl Board {
    /// The board of a product, by its name in NVML or in the label of GPU feature discovery.
    #[must_use]
    pub fn of_product(product: &str) -> Option<Self> {
        BOARDS.into_iter().find(|board| product.split(['-', ' ']).any(|word| word == board.word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_known_by_a_whole_word_of_its_name() {
        for (product, word) in [
            ("NVIDIA-A100-SXM4-80GB", "A100"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA-GH200-480GB", "GH200"),
            ("NVIDIA-A10G", "A10G"),
            ("Tesla-T4", "T4"),
        ] {
            assert_eq!(Board::of_product(product).map(|board| board.word), Some(word));
        }
        assert_eq!(Board::of_product("NVIDIA-X900"), None);
    }
}
