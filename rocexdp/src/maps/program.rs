//! A loaded program's maps by their names, whoever loaded it: the kernel finds programs and maps by number.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, anyhow};
use aya::{
    maps::{Map, MapData, MapInfo, RingBuf},
    programs::loaded_programs,
};
use bytemuck::Pod;

use super::{SharedArray, check_layout};

/// The maps of one program.
#[derive(Debug)]
pub struct ProgramMaps {
    name: String,
    maps: Vec<(String, MapInfo)>,
}

impl ProgramMaps {
    /// Of the loaded program `id`.
    ///
    /// # Errors
    /// It has gone; or CAP_BPF or CAP_SYS_ADMIN is missing.
    pub fn of(id: u32) -> Result<Self> {
        let mut refused = None;
        let program = loaded_programs().find_map(|program| match program {
            Ok(program) => (program.id() == id).then_some(program),
            // One that went away while the list was read, or all of them: then there is none to find.
            Err(error) => {
                refused.get_or_insert(error);
                None
            }
        });
        let program = match (program, refused) {
            (Some(program), _) => program,
            (None, Some(error)) => {
                return Err(anyhow::Error::from(error).context(format!(
                    "looking for the program with id {id} among all that are loaded (needs root, or CAP_BPF and CAP_SYS_ADMIN)"
                )));
            }
            (None, None) => return Err(anyhow!("the program with id {id} has gone")),
        };
        let maps = program.map_ids()?.unwrap_or_default().into_iter();
        let maps = maps.map(|id| {
            let info = MapInfo::from_id(id)?;
            Ok((info.name_as_str().unwrap_or_default().to_owned(), info))
        });
        Ok(Self {
            name: program.name_as_str().unwrap_or_default().to_owned(),
            maps: maps.collect::<Result<_>>()?,
        })
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has such a map.
    pub fn has(&self, map: &str) -> bool {
        self.maps.iter().any(|(name, _)| name == map)
    }

    /// What the kernel says of a map.
    ///
    /// # Errors
    /// It has none of this name.
    pub fn info(&self, map: &str) -> Result<&MapInfo> {
        let found = self.maps.iter().find(|(name, _)| name == map);
        let info = found.map(|(_, info)| info);
        info.ok_or_else(|| {
            anyhow!("the program has no map {map}: it is of another version of rocexdp")
        })
    }

    /// An mmapable array as memory.
    ///
    /// # Errors
    /// As [`Self::info`]; its values have another size; it can't be mapped.
    pub fn share<T: Pod>(&self, map: &str, writable: bool) -> Result<SharedArray<T>> {
        let info = self.info(map)?;
        check_layout::<T>(map, info.value_size(), info.max_entries(), 1)?;
        let fd = info.fd().with_context(|| format!("opening map {map}"))?;
        SharedArray::map(fd.as_fd(), info.max_entries(), writable)
            .with_context(|| format!("mapping map {map}"))
    }

    /// A ring buffer. It has one consumer: the caller sees to it.
    ///
    /// # Errors
    /// As [`Self::info`]; it can't be opened or mapped.
    pub fn ring(&self, map: &str) -> Result<RingBuf<MapData>> {
        let data = MapData::from_id(self.info(map)?.id());
        let data = data.with_context(|| format!("opening map {map}"))?;
        RingBuf::try_from(Map::RingBuf(data)).with_context(|| format!("mapping map {map}"))
    }
}
