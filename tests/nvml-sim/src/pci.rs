//! Where the GPUs are on the PCI bus, for NVML and in the kernel's files about PCI devices.

use std::ffi::c_char;
use std::path::Path;

use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use crate::SimError;
use crate::spec::{GpuSpec, Spec};
use crate::state::Gpu;

/// NVIDIA.
const VENDOR: u16 = 0x10de;
/// A 3D controller: boards of data centres drive no display.
const CLASS: u32 = 0x03_0200;
/// Bus of the first GPU; each has a bus of its own, as behind ports of a root complex.
const FIRST_BUS: u32 = 0x10;
/// Bytes of a device's configuration space.
const CONFIG: usize = 256;
/// Lines of the kernel's file `resource`: six regions and the ROM.
const RESOURCES: usize = 7;

fn bus(minor: u32) -> u32 {
    FIRST_BUS + minor
}

/// Text as NVML has it in a field, with a final 0.
fn text<const N: usize>(value: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().zip(value.bytes().take(N - 1)) {
        *place = byte as c_char;
    }
    field
}

/// What NVML says of a GPU's place.
pub(crate) fn info(gpu: &Gpu) -> nvmlPciInfo_t {
    let bus = bus(gpu.minor);
    let id = gpu.pci_device << 16 | u32::from(VENDOR);
    nvmlPciInfo_t {
        busIdLegacy: text(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        pciDeviceId: id,
        pciSubSystemId: id,
        busId: text(&format!("00000000:{bus:02X}:00.0")),
    }
}

impl Spec {
    /// Writes what the kernel shows of the GPUs below `/sys/bus/pci/devices` into `folder`, which is to be mounted
    /// there: GPU feature discovery takes from it the mode (compute or graphics) and whether GPUs are virtual ones.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_pci_devices(&self, folder: &Path) -> Result<(), SimError> {
        for (minor, gpu) in (0..).zip(&self.gpus) {
            let path = folder.join(format!("0000:{:02x}:00.0", bus(minor)));
            write(&path, gpu).map_err(|source| SimError::Io { path, source })?;
        }
        Ok(())
    }
}

fn write(folder: &Path, gpu: &GpuSpec) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let files = [
        ("vendor", format!("{VENDOR:#06x}\n")),
        ("device", format!("{:#06x}\n", gpu.pci_device)),
        ("class", format!("{CLASS:#08x}\n")),
        // One CPU, so the kernel knows of no NUMA node.
        ("numa_node", "-1\n".to_owned()),
        ("resource", format!("{0:#018x} {0:#018x} {0:#018x}\n", 0).repeat(RESOURCES)),
    ];
    for (name, text) in files {
        std::fs::write(folder.join(name), text)?;
    }
    // The header's first words alone: no capability follows, so the GPU is no virtual one.
    let mut config = [0; CONFIG];
    config[..2].copy_from_slice(&VENDOR.to_le_bytes());
    config[2..4].copy_from_slice(&gpu.pci_device.to_le_bytes());
    config[9..12].copy_from_slice(&CLASS.to_le_bytes()[..3]);
    std::fs::write(folder.join("config"), config)
}
