from .catalog import (
    PublicSet as PublicSet,
    find_public_set as find_public_set,
    public_set_names as public_set_names,
    public_sets as public_sets,
)
from .loading import (
    LoadedSet as LoadedSet,
    load_public_set as load_public_set,
    public_task as public_task,
)
from .rows import item_of_row as item_of_row
