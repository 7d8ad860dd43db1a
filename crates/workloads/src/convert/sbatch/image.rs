//! Images as the pyxis plug-in names them.

/// `[docker://][USER@][REGISTRY#]IMAGE[:TAG]` as Kubernetes names it.
///
/// # Errors
/// Why it is no image that a node can pull: it is a file of the cluster, or only a shell knows it.
pub fn named(text: &str) -> Result<String, String> {
    let name = ["docker://", "docker:"].iter().find_map(|start| text.strip_prefix(start)).unwrap_or(text);
    let file = name.starts_with(['/', '.', '~'])
        || [".sqsh", ".squashfs", ".sif"].iter().any(|ending| name.ends_with(ending));
    if file {
        return Err(format!(
            "{text} is a file of the cluster: push the image to a registry and give --image"
        ));
    }
    // A name without a registry, such as `$IMAGE`, or with the scheme of a daemon on the node.
    let (registry, path) =
        name.split_once('#').map_or((None, name), |(registry, path)| (Some(registry), path));
    if path.is_empty() || path.contains(['$', '`', ' ']) || name.contains("://") {
        return Err(format!("{text} is no name of an image in a registry: give --image"));
    }
    // The user who pulls is a secret of the namespace.
    let host = registry.map(|registry| registry.rsplit('@').next().unwrap_or_default());
    Ok(match host {
        Some(host) if !host.is_empty() => format!("{host}/{path}"),
        _ => path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pyxis_become_names_of_kubernetes() {
        for (text, name) in [
            ("nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
            ("docker://nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
            ("docker://$oauthtoken@nvcr.io#nvidia/pytorch:1", "nvcr.io/nvidia/pytorch:1"),
            ("docker://pytorch/pytorch", "pytorch/pytorch"),
            ("ubuntu@sha256:00", "ubuntu@sha256:00"),
        ] {
            assert_eq!(named(text), Ok(name.to_owned()));
        }
    }

    #[test]
    fn files_and_variables_are_no_images() {
        for text in [
            "/images/a.sqsh",
            "./a",
            "a.sqsh",
            "docker:///images/a.sqsh",
            "$IMAGE",
            "dockerd://a",
            "",
            "nvcr.io#",
        ] {
            assert!(named(text).is_err(), "{text}");
        }
    }
}
