from .catalog import PublicSet as PublicSet
from .catalog import find_public_set as find_public_set
from .catalog import public_sets as public_sets
from .loading import LoadedSet as LoadedSet
from .loading import load_public_set as load_public_set
from .loading import public_task as public_task
