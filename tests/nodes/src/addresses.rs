//! Addresses for pods: who has which.

use std::collections::HashSet;
use std::net::Ipv4Addr;

/// Pod addresses of 10.244.0.0/16, the longest unused first.
#[derive(Debug)]
pub(crate) struct Addresses {
    next: u32,
    used: HashSet<u32>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { next: Self::FIRST, used: HashSet::new() }
    }
}

impl Addresses {
    const FIRST: u32 = u32::from_be_bytes([10, 244, 0, 2]);
    const LAST: u32 = u32::from_be_bytes([10, 244, 255, 254]);

    /// An address nobody has; empty when there is none left.
    pub fn take(&mut self) -> String {
        for _ in Self::FIRST..=Self::LAST {
            let address = self.next;
            self.next = if address == Self::LAST { Self::FIRST } else { address + 1 };
            if self.used.insert(address) {
                return Ipv4Addr::from(address).to_string();
            }
        }
        String::new()
    }

    /// The address a pod had under an earlier kubelet process, if nobody else has it now.
    pub fn keep(&mut self, address: &str) -> Option<String> {
        let number = u32::from(address.parse::<Ipv4Addr>().ok()?);
        let ours = (Self::FIRST..=Self::LAST).contains(&number);
        (ours && self.used.insert(number)).then(|| address.to_owned())
    }

    pub fn give_back(&mut self, address: &str) {
        if let Ok(address) = address.parse::<Ipv4Addr>() {
            self.used.remove(&u32::from(address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Addresses;

    #[test]
    fn addresses_are_not_used_again_at_once() {
        let mut addresses = Addresses::default();
        let first = addresses.take();
        assert_eq!(first, "10.244.0.2");
        addresses.give_back(&first);
        assert_eq!(addresses.take(), "10.244.0.3");
    }
}
