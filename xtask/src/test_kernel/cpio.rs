//! An initial RAM disk: the "new ASCII" cpio format that the kernel unpacks.

use std::{fs, io, path::Path};

/// An archive in the making.
pub(super) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_666;
const LINK: u32 = 0o120_777;

impl Archive {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), inode: 0 }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        let inode = self.inode;
        self.inode += 1;
        let length = data.len();
        let name_length = name.len() + 1;
        let (major, minor) = device;
        let header = format!(
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{length:08x}{0:08x}{0:08x}\
             {major:08x}{minor:08x}{name_length:08x}{0:08x}",
            0, 1
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(super) fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, (0, 0), &[]);
    }

    pub(super) fn program(&mut self, name: &str, data: &[u8]) {
        self.entry(name, PROGRAM, (0, 0), data);
    }

    pub(super) fn program_from(&mut self, name: &str, path: &Path) -> io::Result<()> {
        let data = fs::read(path)?;
        self.program(name, &data);
        Ok(())
    }

    pub(super) fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, DEVICE, (major, minor), &[]);
    }

    pub(super) fn link(&mut self, name: &str, target: &str) {
        self.entry(name, LINK, (0, 0), target.as_bytes());
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_their_sizes_told() {
        let mut archive = Archive::new();
        archive.folder("bin");
        archive.program("bin/a", b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        let second = 110 + 4 + 2; // header, "bin\0", padding
        assert_eq!(&bytes[second..second + 6], b"070701");
        assert_eq!(&bytes[second + 54..second + 62], b"00000005");
    }
}
