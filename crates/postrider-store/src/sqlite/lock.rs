//! One process at a time: two writers on one folder would each believe that they own every lane.

use super::OpenError;
use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    path::Path,
};

/// Held for as long as it lives; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    pub fn take(folder: &Path) -> Result<Self, OpenError> {
        let path = folder.join("postrider.lock");
        let failed = |source| OpenError::Folder { folder: folder.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(OpenError::Locked { folder: folder.to_owned(), holder: holder.trim().to_owned() });
            }
            Err(std::fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        file.set_len(0).map_err(failed)?;
        file.rewind().map_err(failed)?;
        writeln!(file, "process {}", std::process::id()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}
