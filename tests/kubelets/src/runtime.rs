//! Which of containerd's runtimes is the default one, and so how containers come by GPUs.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nvidia_ml::Spec;

use crate::gpus::Gpus;

/// The runtime of containers whose pods name no RuntimeClass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultRuntime {
    /// NVIDIA's, as the GPU operator set it up before 25.10. It looks up the GPUs that the device plug-in writes into
    /// `NVIDIA_VISIBLE_DEVICES`.
    #[default]
    Nvidia,
    /// runc, as the GPU operator leaves it since 25.10: there `cdi.enabled` is a default. NVIDIA's is that of the RuntimeClass `nvidia`,
    /// which the operator's own pods name. For all others the device plug-in describes the GPUs as CDI devices and names those to the
    /// kubelet, and containerd adds them to containers.
    Runc,
}

impl DefaultRuntime {
    /// As containerd's configuration has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Runc => "runc",
        }
    }

    /// NVIDIA's device plug-in, which hands out GPUs as the GPU operator has it do (`DEVICE_LIST_STRATEGY`).
    pub(crate) fn device_plugin(self) -> String {
        let manifest = include_str!("../manifests/gpus.yaml");
        match self {
            Self::Nvidia => manifest.to_owned(),
            Self::Runc => manifest.replace("\"envvar\"", "\"cdi-annotations,cdi-cri\""),
        }
    }

    /// Writes what the device plug-in looks for when it describes GPUs as CDI devices; the node has it where the operator's container of the
    /// driver leaves that.
    ///
    /// # Errors
    /// When a file cannot be written, or the GPUs are not simulated: theirs is another folder.
    pub(crate) fn write_driver(self, folder: &Path, gpus: &Gpus) -> Result<()> {
        if self == Self::Nvidia {
            return Ok(());
        }
        let Gpus::Simulated { count, .. } = gpus else {
            bail!("runc is the default runtime of nodes with simulated GPUs alone");
        };
        // No program here loads CUDA: the plug-in finds the driver's libraries by this name.
        let version = Spec::of(&[]).driver_version;
        let library = format!("usr/lib/{}-linux-gnu/libcuda.so.{version}", std::env::consts::ARCH);
        // A device is mounted on each of these, by the script `node`.
        let devices = (0..*count).map(|minor| format!("dev/nvidia{minor}"));
        for name in devices.chain([library]) {
            let path = folder.join("driver").join(name);
            std::fs::create_dir_all(path.parent().context("a folder")?)?;
            std::fs::write(&path, "").with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_plug_in_names_cdi_devices_where_runc_is_the_default_runtime() {
        let (nvidia, runc) = (DefaultRuntime::Nvidia.device_plugin(), DefaultRuntime::Runc.device_plugin());
        assert!(nvidia.contains(r#"{name: DEVICE_LIST_STRATEGY, value: "envvar"}"#), "{nvidia}");
        assert!(runc.contains(r#"{name: DEVICE_LIST_STRATEGY, value: "cdi-annotations,cdi-cri"}"#), "{runc}");
    }
}
