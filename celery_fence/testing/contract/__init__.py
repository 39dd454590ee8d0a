"""
What every lease store promises, as tests to inherit.

```python
class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self):
        return MyStore(...)  # empty, or with keys of its own
```

Each test is one sentence of `celery_fence.locking.store`. Three more fixtures may be
overridden: `pass_time` for a store whose clock can be moved, `lose_everything` for one
that can lose its data, as by a flush or a failover, and `copy_data` for one to which data
of an earlier moment may come back, as from a replica that lagged.
"""

from celery_fence.testing.contract.acquire import AcquireContract
from celery_fence.testing.contract.closed import LostDelayContract
from celery_fence.testing.contract.decisions import DecisionContract
from celery_fence.testing.contract.ended import EndedDeliveryContract
from celery_fence.testing.contract.ending import EndingContract
from celery_fence.testing.contract.notes import NoteContract
from celery_fence.testing.contract.older import OlderDataContract
from celery_fence.testing.contract.raising import RaisingContract
from celery_fence.testing.contract.record_claims import RecordClaimContract
from celery_fence.testing.contract.record_deletion import RecordDeletionContract
from celery_fence.testing.contract.records import RecordContract
from celery_fence.testing.contract.records_under_lease import RecordUnderLeaseContract
from celery_fence.testing.contract.release import ForceReleaseContract, ReleaseContract
from celery_fence.testing.contract.renew import RenewContract
from celery_fence.testing.contract.sharing import ConnectionContract, ListContract


class StoreContract(
    AcquireContract,
    RenewContract,
    ReleaseContract,
    ForceReleaseContract,
    EndedDeliveryContract,
    EndingContract,
    NoteContract,
    DecisionContract,
    LostDelayContract,
    RecordContract,
    RecordClaimContract,
    RecordUnderLeaseContract,
    RecordDeletionContract,
    RaisingContract,
    OlderDataContract,
    ListContract,
    ConnectionContract,
):
    """Everything a lease store promises: inherit, and give a fixture `store`."""
