"""
The protocol between the planes: how jobs and runs live on two that fail apart.

The durable plane is the truth; the hot plane is a projection that can be lost
and rebuilt at any moment.
"""
